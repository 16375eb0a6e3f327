"""BabyLM's evaluation: zero-shot (`python -m bertlab.contrib.babylm`) and fine-tuning tasks."""
