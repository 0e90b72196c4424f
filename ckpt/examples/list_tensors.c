/* Lists the tensors of a checkpoint, or of the newest one of a run, in C99: list_tensors PATH */
#include <inttypes.h>
#include <stdio.h>

#include "shardwright/shardwright.h"

static int failed(void) {
  fprintf(stderr, "list_tensors: %s: %s\n", shardwright_status_name(shardwright_error_status()),
          shardwright_error_message());
  return 1;
}

int main(int count, char **arguments) {
  shardwright_checkpoint *checkpoint;
  uint64_t step, tensors, i;
  if (count != 2) return 2;
  if (shardwright_checkpoint_open(arguments[1], &checkpoint) != SHARDWRIGHT_OK) return failed();
  if (shardwright_checkpoint_info(checkpoint, &step, &tensors, NULL) != SHARDWRIGHT_OK) return failed();
  printf("step %" PRIu64 "\n", step);
  for (i = 0; i < tensors; ++i) {
    shardwright_tensor tensor;
    uint32_t d;
    if (shardwright_checkpoint_tensor(checkpoint, i, &tensor) != SHARDWRIGHT_OK) return failed();
    printf("%s %s %s [", tensor.name, tensor.kind, shardwright_dtype_name(tensor.dtype));
    for (d = 0; d < tensor.ndim; ++d) printf("%s%" PRIu64, d == 0 ? "" : ", ", tensor.shape[d]);
    printf("] %016" PRIx64 "%016" PRIx64 "\n", tensor.fingerprint[0], tensor.fingerprint[1]);
  }
  shardwright_checkpoint_close(checkpoint);
  return 0;
}
