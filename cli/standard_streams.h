// Descriptors 0, 1 and 2 of this process.
#pragma once

namespace shardwright::cli {

/// Fills those of the standard descriptors that were closed (`>&-`) with ones on which their use fails:
/// otherwise the next file opened, a shard or a log, would get the number, and with it what is printed. To be
/// called first.
void fill_standard_streams();

}  // namespace shardwright::cli
