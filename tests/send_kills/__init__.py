"""Laboratory: `headrace send` killed at work, and with more input than memory."""
