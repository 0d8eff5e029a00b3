"""Metrics (`metrics`), progress displays (`progress`, `live_view`, `text_view`) and OpenTelemetry (`telemetry`)."""
