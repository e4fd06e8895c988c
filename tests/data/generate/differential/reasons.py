"""Why this crate and another library may say different things of one file."""

REASONS = {"npy": [], "npz": [], "gguf": [], "torch": [], "legacy": []}
