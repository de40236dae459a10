"""The messages between agent and collector, generated from telemetry.proto."""
