"""Metrics (`metrics`), progress displays (`progress`, `live_view`) and OpenTelemetry (`telemetry`)."""
