"""The protocol between agents and collectors."""

#: The one service of ``telemetry.proto``, and its one method: a stream of messages both ways.
SERVICE = "hindmost.v1.Telemetry"
METHOD = f"/{SERVICE}/Stream"
