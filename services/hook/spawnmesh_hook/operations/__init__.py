"""Steps that several RPCs and the deliveries of events share."""
