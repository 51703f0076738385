"""The backend that runs a model's weights in this process, with transformers."""
