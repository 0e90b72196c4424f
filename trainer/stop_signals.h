// SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask a rank to stop after a good save; the handler only sets a flag,
// which travels to the other ranks with the next all-reduce.
#pragma once

namespace shardwright::trainer {

/// Installs the handlers; before any other thread starts. A SIGHUP that is ignored (nohup) stays so.
void catch_stop_signals();
/// True from the first such signal on.
bool stop_requested();

}  // namespace shardwright::trainer
