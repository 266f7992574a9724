"""Advantages, losses, value model, rejection fine-tuning: plain torch."""
