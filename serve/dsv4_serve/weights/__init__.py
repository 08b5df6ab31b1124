"""How an operator gets a model: pulled at one commit, recorded, and verified byte for byte."""
