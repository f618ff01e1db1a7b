"""A client's side of the channel protocol. `router.Router` is the way in."""
