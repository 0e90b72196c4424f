#include "trainer/run_identity.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "trainer/agreement.h"
#include "trainer/records.h"

namespace shardwright::trainer {

ckpt::Generation next_generation(ckpt::Env& env, const Config& config) {
  const ckpt::Started started = ckpt::begin_generation(
      env, config.run_dir, config.checkpoints_dir, [&config] { return recorded_generation(config.run_dir); });
  if (!started.recovered.empty())
    std::fputs(fmt::format("shardwright: warning: {}\n", started.recovered).c_str(), stderr);
  return started.generation;
}

RunIdentity join_run(ckpt::Env& env, Communicator& world, const Config& config,
                     const std::optional<Supervised>& supervised) {
  RunIdentity identity;
  if (supervised) {
    identity.supervised = true;
    identity.generation = {supervised->run, supervised->generation};
    return identity;
  }
  together(world, [&] {
    if (world.rank() != 0) return;
    env.create_dirs(config.run_dir);
    env.create_dirs(config.checkpoints_dir);
    identity.locks.push_back(std::make_unique<ckpt::RunLock>(env, config.run_dir));
    // A lock of this process on the same file would keep itself out.
    if (!std::filesystem::equivalent(config.run_dir, config.checkpoints_dir))
      identity.locks.push_back(std::make_unique<ckpt::RunLock>(env, config.checkpoints_dir));
    identity.generation = next_generation(env, config);
  });
  identity.generation.run = world.broadcast(identity.generation.run, 0);
  world.broadcast(std::as_writable_bytes(std::span(&identity.generation.number, 1)), 0);
  return identity;
}

}  // namespace shardwright::trainer
