// collectives: run by any number of ranks. Each collective of the communicator against the sum, maximum or
// text known by rank numbers, with uneven and empty segments, in one MPI call and in several. Exits 1 with a
// line for each difference.
#include <fmt/format.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/agreement.h"
#include "trainer/communicator.h"

namespace shardwright::trainer {
namespace {

class Check {
 public:
  explicit Check(Communicator& world) : world_(world), rank_(world.rank()), size_(world.size()) {}

  int run() {
    sums_and_maxima();
    for (int pattern = 0; pattern < 4; ++pattern) segments(pattern);
    started();
    texts();
    agreement();
    world_.barrier();
    return failures_;
  }

 private:
  void expect(bool right, const std::string& what) {
    if (right) return;
    ++failures_;
    fmt::print(stderr, "rank {} of {}: {}\n", rank_, size_, what);
  }

  // Small whole numbers, so that sums are exact in any order.
  static float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 17 + 1)); }
  float total(std::int64_t i) const {
    float sum = 0;
    for (int r = 0; r < size_; ++r) sum += value(r, i);
    return sum;
  }

  void sums_and_maxima() {
    for (const std::int64_t n : {0, 1, 2, 3, 1000}) {
      std::vector<float> floats;
      std::vector<double> doubles;
      for (std::int64_t i = 0; i < n; ++i) floats.push_back(value(rank_, i));
      doubles.assign(floats.begin(), floats.end());
      std::vector<float> largest = floats;
      std::vector<std::int64_t> whole(floats.begin(), floats.end());
      world_.all_reduce_sum(std::span<float>(floats));
      world_.all_reduce_sum(std::span<double>(doubles));
      world_.all_reduce_max(std::span<float>(largest));
      world_.all_reduce_max(std::span<std::int64_t>(whole));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::size_t at = static_cast<std::size_t>(i);
        expect(floats[at] == total(i) && doubles[at] == total(i),
               fmt::format("sum of element {} of {}", i, n));
        expect(
            largest[at] == value(size_ - 1, i) && whole[at] == static_cast<std::int64_t>(value(size_ - 1, i)),
            fmt::format("maximum of element {} of {}", i, n));
      }
    }
  }

  // 0: all alike; 1: rising; 2: all with the last rank; 3: every other rank empty.
  std::int64_t count(int pattern, int rank) const {
    if (pattern == 0) return 5;
    if (pattern == 1) return 3 * rank;
    if (pattern == 2) return rank == size_ - 1 ? 11 : 0;
    return rank % 2 == 0 ? 0 : 7 + rank;
  }

  void segments(int pattern) {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < size_; ++r) counts.push_back(count(pattern, r));
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
    std::vector<float> in;
    for (std::int64_t i = 0; i < all; ++i) in.push_back(value(rank_, i));
    std::vector<float> own(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank_)]), -1);
    world_.reduce_scatter_sum(in, own, counts);
    for (std::size_t i = 0; i < own.size(); ++i)
      expect(own[i] == total(first + static_cast<std::int64_t>(i)),
             fmt::format("reduce-scatter {}: element {}", pattern, i));

    std::vector<float> gathered(static_cast<std::size_t>(all), -1);
    world_.all_gather(own, gathered, counts);
    // Again from its own place.
    std::vector<float> in_place(static_cast<std::size_t>(all), -1);
    std::copy(own.begin(), own.end(), in_place.begin() + static_cast<std::ptrdiff_t>(first));
    world_.all_gather(std::span(in_place).subspan(static_cast<std::size_t>(first), own.size()), in_place,
                      counts);
    for (std::int64_t i = 0; i < all; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      expect(gathered[at] == total(i) && in_place[at] == total(i),
             fmt::format("all-gather {}: element {}", pattern, i));
    }
  }

  // Several at once, of all shapes, waited for in another order.
  void started() {
    std::vector<std::vector<std::int64_t>> counts(4);
    std::vector<std::vector<float>> in(4), own(4);
    std::vector<std::vector<std::byte>> gathered(4);
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (int pattern = 0; pattern < 4; ++pattern) {
      const auto p = static_cast<std::size_t>(pattern);
      for (int r = 0; r < size_; ++r) counts[p].push_back(count(pattern, r));
      const std::int64_t all = std::accumulate(counts[p].begin(), counts[p].end(), std::int64_t{0});
      for (std::int64_t i = 0; i < all; ++i) in[p].push_back(value(rank_, i));
      own[p].assign(static_cast<std::size_t>(count(pattern, rank_)), -1);
      gathered[p].assign(static_cast<std::size_t>(all), std::byte{255});
      const std::int64_t first = first_of(counts[p]);
      for (std::int64_t i = 0; i < count(pattern, rank_); ++i)
        gathered[p][static_cast<std::size_t>(first + i)] = byte(first + i);
      transfers.push_back(world_.start_reduce_scatter_sum(in[p], own[p], counts[p]));
      transfers.push_back(world_.start_all_gather(gathered[p], counts[p]));
      transfers.front()->advance();
    }
    for (std::size_t i = transfers.size(); i-- > 0;) transfers[i]->wait();
    for (std::size_t p = 0; p < 4; ++p) {
      for (std::size_t i = 0; i < own[p].size(); ++i)
        expect(own[p][i] == total(first_of(counts[p]) + static_cast<std::int64_t>(i)),
               fmt::format("started reduce-scatter {}: element {}", p, i));
      for (std::size_t i = 0; i < gathered[p].size(); ++i)
        expect(gathered[p][i] == byte(static_cast<std::int64_t>(i)),
               fmt::format("started all-gather {}: byte {}", p, i));
    }
  }
  static std::byte byte(std::int64_t i) { return static_cast<std::byte>(i % 251); }
  std::int64_t first_of(const std::vector<std::int64_t>& counts) const {
    return std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
  }

  void texts() {
    const std::vector<std::string> all = world_.all_gather(std::string(static_cast<std::size_t>(rank_), 'x'));
    for (int r = 0; r < size_; ++r)
      expect(all[static_cast<std::size_t>(r)].size() == static_cast<std::size_t>(r), "text of a rank");
    for (int root = 0; root < size_; ++root) {
      const std::string text = root == 0 ? "" : fmt::format("from {}", root);
      expect(world_.broadcast(rank_ == root ? text : std::string("mine"), root) == text, "broadcast text");
    }
  }

  void agreement() {
    expect(!failure_of_any(world_, [] {}), "agreement on no error");
    const int last = size_ - 1;
    const std::optional<Error> error = failure_of_any(world_, [&] {
      if (rank_ == last) throw Error(ErrorCode::no_space, "a file: no space", "/path");
    });
    expect(error && error->code() == ErrorCode::no_space && error->path() == "/path", "one rank's error");
    const std::string prefix = last == 0 ? "" : fmt::format("rank {}: ", last);
    expect(error && error->what() == prefix + "a file: no space", "its message");
  }

  Communicator& world_;
  int rank_;
  int size_;
  int failures_ = 0;
};

}  // namespace
}  // namespace shardwright::trainer

int main() {
  using namespace shardwright::trainer;
  const MpiRuntime mpi;
  int failures = 0;
  for (const std::int64_t max_count : {kMaxMpiCount, std::int64_t{4}}) {
    const std::unique_ptr<Communicator> world = make_mpi_world(mpi, max_count);
    failures += Check(*world).run();
  }
  return failures == 0 ? 0 : 1;
}
