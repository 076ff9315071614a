"""Random problems and what the choice makes of them, random configs and what the rules let pass: all are built."""
