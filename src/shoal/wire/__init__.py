"""What travels: RESP on hiredis, the envelope of a message, the control messages between clients and agents."""
