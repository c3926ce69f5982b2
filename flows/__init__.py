"""The flows, which only connect stages, with their parameters; the command `penumbra`; `penumbra serve`."""
