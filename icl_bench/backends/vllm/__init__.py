"""The backend that runs vLLM in this process."""
