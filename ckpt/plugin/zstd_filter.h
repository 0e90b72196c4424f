/* The registered HDF5 filter 32015 (zstd): one frame with its content size per chunk. */
#ifndef SHARDWRIGHT_CKPT_PLUGIN_ZSTD_FILTER_H_
#define SHARDWRIGHT_CKPT_PLUGIN_ZSTD_FILTER_H_

#include <hdf5.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHARDWRIGHT_ZSTD_FILTER_ID 32015

/* For H5Zregister() and for the plugin that stock tools load. Calls no function of libhdf5. */
extern const H5Z_class2_t shardwright_zstd_filter;

#ifdef __cplusplus
}
#endif

#endif
