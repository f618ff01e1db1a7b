"""The wire: connections and RESP, the envelope of messages, control messages between clients and agents."""
