"""GP-UCB for privatised and heavy-tailed rewards (Zhou and Tan; Chowdhury and Gopalan)."""
