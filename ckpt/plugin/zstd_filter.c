#include "zstd_filter.h"

#include <stdlib.h>
#include <zstd.h>

/* What a chunk may claim to hold; HDF5 itself ends below 4 GiB. Guards against a damaged header's allocation. */
#define MAX_CHUNK_BYTES 0xffffffffULL
/* A block of a frame has 3 bytes or more and holds 128 KiB at most: no frame expands further. */
#define BLOCK_HEADER_BYTES 3
#define BLOCK_BYTES (128u << 10)

/* Replaces *buf by `output` of `size` bytes. libhdf5 frees it with free(), as it allocated *buf with malloc(). */
static size_t hand_over(void** buf, size_t* buf_size, void* output, size_t size) {
  free(*buf);
  *buf = output;
  *buf_size = size;
  return size;
}

/* Returns the bytes of the content, 0 for any error. */
static size_t decode(void** buf, size_t* buf_size, size_t nbytes) {
  const unsigned long long content = ZSTD_getFrameContentSize(*buf, nbytes);
  if (content == ZSTD_CONTENTSIZE_UNKNOWN || content == ZSTD_CONTENTSIZE_ERROR || content == 0 ||
      content > MAX_CHUNK_BYTES || content / BLOCK_BYTES > nbytes / BLOCK_HEADER_BYTES)
    return 0;
  void* output = malloc((size_t)content);
  if (output == NULL) return 0;
  const size_t size = ZSTD_decompress(output, (size_t)content, *buf, nbytes);
  if (ZSTD_isError(size) || size != content) {
    free(output);
    return 0;
  }
  return hand_over(buf, buf_size, output, size);
}

/* cd_values[0] is the compression level as an int; without it zstd's default. */
static size_t encode(size_t cd_count, const unsigned cd_values[], void** buf, size_t* buf_size, size_t nbytes) {
  int level = cd_count > 0 ? (int)cd_values[0] : ZSTD_CLEVEL_DEFAULT;
  if (level > ZSTD_maxCLevel()) level = ZSTD_maxCLevel();
  if (level < ZSTD_minCLevel()) level = ZSTD_minCLevel();
  const size_t room = ZSTD_compressBound(nbytes);
  void* output = malloc(room);
  if (output == NULL) return 0;
  const size_t size = ZSTD_compress(output, room, *buf, nbytes, level);
  if (ZSTD_isError(size)) {
    free(output);
    return 0;
  }
  return hand_over(buf, buf_size, output, size);
}

static size_t filter(unsigned flags, size_t cd_count, const unsigned cd_values[], size_t nbytes, size_t* buf_size,
                     void** buf) {
  if (flags & H5Z_FLAG_REVERSE) return decode(buf, buf_size, nbytes);
  return encode(cd_count, cd_values, buf, buf_size, nbytes);
}

const H5Z_class2_t shardwright_zstd_filter = {
    H5Z_CLASS_T_VERS, SHARDWRIGHT_ZSTD_FILTER_ID, 1, 1, "Zstandard compression: http://www.zstd.net", NULL, NULL, filter};
