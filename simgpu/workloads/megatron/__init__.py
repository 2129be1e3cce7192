"""One GPU's training iteration as Megatron-LM runs it with TransformerEngine's modules."""
