// Particles that fall around a star. Some processes move them, each its own share, and save them together
// every ten steps; nothing but the file system connects the processes. Started again, also with another
// number of processes, the program goes on from the newest checkpoint. If a process is lost, even in the
// middle of a save, that is the one before.
//
//   particles run DIRECTORY PROCESSES STEPS
//   particles x CHECKPOINT FIRST COUNT         prints the x of some particles
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwright/ckpt/checkpoint.h"
#include "shardwright/ckpt/run.h"
#include "shardwright/ckpt/typed_items.h"

namespace ckpt = shardwright::ckpt;

const ckpt::Dims kShape = {1000, 3};  // of both tensors, position and velocity: particles, x y z
constexpr std::uint64_t kSaveEvery = 10;

/// One process' particles: some rows of the two tensors.
struct Particles {
  ckpt::Box box;
  std::vector<double> position, velocity;
  std::uint64_t step = 0;
};

Particles make_share(int rank, int processes) {
  const std::uint64_t first = kShape[0] * rank / processes, end = kShape[0] * (rank + 1) / processes;
  Particles mine;
  mine.box = {{first, 0}, {end - first, 3}};
  for (std::uint64_t i = first; i < end; ++i) {
    const double radius = 1 + 0.001 * static_cast<double>(i);
    mine.position.insert(mine.position.end(), {radius, 0, 0});
    mine.velocity.insert(mine.velocity.end(), {0, std::sqrt(1 / radius), 0.01});
  }
  return mine;
}

void move(Particles& mine) {
  constexpr double kSeconds = 0.01;
  for (std::size_t i = 0; i < mine.position.size(); i += 3) {
    double* x = &mine.position[i];
    const double distance = std::sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2]);
    for (int d = 0; d < 3; ++d) mine.velocity[i + d] -= kSeconds * x[d] / (distance * distance * distance);
    for (int d = 0; d < 3; ++d) x[d] += kSeconds * mine.velocity[i + d];
  }
  ++mine.step;
}

void load(const std::string& path, Particles& mine) {
  const ckpt::Checkpoint saved = ckpt::Checkpoint::open(ckpt::posix_env(), path);
  const ckpt::LoadItem wanted[] = {ckpt::load_item("position", "state", kShape, mine.box, mine.position),
                                   ckpt::load_item("velocity", "state", kShape, mine.box, mine.velocity)};
  saved.load(wanted, {});
  mine.step = saved.commit().step;
}

/// What each process does.
void work(const std::string& directory, std::uint64_t generation, int rank, int processes,
          const std::optional<std::string>& from, std::uint64_t steps) {
  Particles mine = make_share(rank, processes);
  if (from) load(*from, mine);
  ckpt::RunWriterOptions options;
  options.rank = rank;
  options.writers = processes;
  ckpt::RunWriter writer(directory, generation, options);
  while (mine.step < steps) {
    move(mine);
    if (mine.step % kSaveEvery == 0)
      writer.save(mine.step, {ckpt::save_item("position", "state", kShape, mine.box, mine.position),
                              ckpt::save_item("velocity", "state", kShape, mine.box, mine.velocity)});
  }
}

/// Starts the processes and waits for them; if one is lost, ends the others.
int run(const std::string& directory, int processes, std::uint64_t steps) {
  ckpt::Run run(directory);
  const std::optional<std::string> from = run.newest();
  std::printf("%s\n", from ? from->c_str() : "a new run");
  std::fflush(stdout);
  std::vector<pid_t> workers;
  for (int rank = 0; rank < processes; ++rank) {
    const pid_t worker = fork();
    // Those that were started end by the deadline of their first save.
    if (worker < 0) throw std::runtime_error("no more processes can be started");
    if (worker > 0) {
      workers.push_back(worker);
      continue;
    }
    try {
      work(directory, run.generation(), rank, processes, from, steps);
      _exit(0);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "process %d: %s\n", rank, e.what());
      _exit(1);
    }
  }
  bool all_well = true;
  int status = 0;
  for (pid_t ended = wait(&status); ended > 0; ended = wait(&status)) {
    std::erase(workers, ended);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (all_well)
      for (const pid_t worker : workers) kill(worker, SIGKILL);
    all_well = false;
  }
  return all_well ? 0 : 1;
}

/// A box that nobody saved as such: one column of some rows.
void print_x(const std::string& path, std::uint64_t first, std::uint64_t count) {
  const ckpt::Checkpoint saved = ckpt::Checkpoint::open(ckpt::posix_env(), path);
  std::vector<double> x(count);
  const ckpt::LoadItem wanted[] = {
      ckpt::load_item("position", "state", saved.shape("position"), {{first, 0}, {count, 1}}, x)};
  saved.load(wanted, {});
  for (const double value : x) std::printf("%.17g\n", value);
}

int main(int count, char** arguments) {
  try {
    const std::string command = count == 5 ? arguments[1] : "";
    if (command == "run")
      return run(arguments[2], std::atoi(arguments[3]), std::strtoull(arguments[4], nullptr, 10));
    if (command == "x") {
      print_x(arguments[2], std::strtoull(arguments[3], nullptr, 10),
              std::strtoull(arguments[4], nullptr, 10));
      return 0;
    }
    std::fputs("particles run DIRECTORY PROCESSES STEPS\nparticles x CHECKPOINT FIRST COUNT\n", stderr);
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "particles: %s\n", e.what());
    return 1;
  }
}
