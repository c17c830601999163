"""Training of target, drafter and Weaver: text, losses, one resumable loop, and the stages that tie them together."""
