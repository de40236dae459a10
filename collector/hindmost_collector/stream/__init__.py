"""What agents send, between the socket and arrays: sessions, clocks, definitions, relays."""
