/* libH5Zzstd.so: how h5dump, h5py and other programs with any libhdf5 find the filter through HDF5_PLUGIN_PATH. */
#include <H5PLextern.h>

#include "zstd_filter.h"

H5PL_type_t H5PLget_plugin_type(void) { return H5PL_TYPE_FILTER; }

const void* H5PLget_plugin_info(void) { return &shardwright_zstd_filter; }
