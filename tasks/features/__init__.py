"""Features of texts and videos: computed with CLIP, or brought in from others."""
