"""The one transformer that Moment-DETR, QD-DETR and BM-DETR are put together from."""
