"""The promises, tried on a user's own model before training is paid for."""
