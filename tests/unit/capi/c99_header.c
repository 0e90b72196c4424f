/* The header is C99, and what it names can be called from C. */
#include "ckpt/capi/shardwright.h"

const char *c99_header_version(void);
const char *c99_header_version(void) { return shardwright_version(); }
