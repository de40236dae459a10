"""An agent's bytes to arrays on one clock: sessions, definitions, acknowledgements, relays."""
