"""The protocol between agents and collectors."""

#: The one service of ``telemetry.proto``, and its one method: a stream of messages both ways.
SERVICE = "hindmost.v1.Telemetry"
METHOD = f"/{SERVICE}/Stream"


def varint(number: int) -> bytes:
    """A number of 0 and more as protobuf writes it, seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
