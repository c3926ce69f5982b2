"""From video files to the frames that stand for their clips: decoded in worker processes, ahead of the encoder."""
