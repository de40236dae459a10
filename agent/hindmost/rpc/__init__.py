"""A gRPC client of one call, in the standard library alone: the stream of an agent or a relay to its collector."""

TELEMETRY = "/hindmost.v1.Telemetry/Stream"
