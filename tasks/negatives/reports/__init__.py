"""What a person wants to know of a run of build-negatives."""
