"""`dsv4 eval`: what the index's format costs, in answers, in selection and in logits."""
