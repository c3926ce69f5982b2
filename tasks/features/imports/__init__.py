"""Features that others have extracted: HDF5 files and folders of .npy and .npz files, into our own table."""
