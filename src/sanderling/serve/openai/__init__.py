"""The routes of OpenAI's interface: chats, completions, embeddings, models."""
