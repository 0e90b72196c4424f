// Runs a fuzz target without libFuzzer: <program> CORPUS MUTATIONS. Each input of the corpus, then so many
// mutations of them, the same on every machine and in every run. A finding ends the process; the input is
// then in FINDING of the working directory.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> read_corpus(const char* directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus = {{}};
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// Small changes of the kinds that libFuzzer makes.
class Mutations {
 public:
  explicit Mutations(const std::vector<Bytes>& corpus) : corpus_(corpus) {}

  Bytes next() {
    Bytes input = any();
    for (std::uint64_t changes = 1 + below(4); changes > 0; --changes) change(input);
    return input;
  }

 private:
  /// Not std::uniform_int_distribution, whose numbers differ between libraries.
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  const Bytes& any() { return corpus_[below(corpus_.size())]; }
  auto place(Bytes& input, std::size_t at) { return input.begin() + static_cast<std::ptrdiff_t>(at); }

  void change(Bytes& input) {
    static constexpr std::uint8_t kTelling[] = {0,   1,   2,    0x0a, '"',  '0',  '9', '-',
                                                '[', '{', 0x7f, 0x80, 0xf7, 0xfe, 0xff};
    const std::size_t size = input.size();
    if (size == 0) {
      input.push_back(static_cast<std::uint8_t>(below(256)));
      return;
    }
    const std::size_t at = below(size), length = 1 + below(std::min<std::size_t>(size - at, 16));
    switch (below(7)) {
      case 0:
        input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        input[at] = kTelling[below(std::size(kTelling))];
        break;
      case 2:
        input.insert(place(input, at), static_cast<std::uint8_t>(below(256)));
        break;
      case 3:
        input.erase(place(input, at), place(input, at + length));
        break;
      case 4: {
        const Bytes copy(place(input, at), place(input, at + length));
        input.insert(place(input, below(size)), copy.begin(), copy.end());
        break;
      }
      case 5:
        input.resize(at);
        break;
      default: {
        const Bytes& other = any();
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(std::min(at, other.size())),
                     other.end());
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_{20240229};
};

void run(const Bytes& input) {
  // Written first: a finding ends the process in ways that leave nothing more to do.
  if (std::FILE* file = std::fopen("FINDING", "wb")) {
    if (!input.empty()) std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS MUTATIONS\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.size() < 2) {
    std::fprintf(stderr, "%s: has no inputs\n", argv[1]);
    return 1;
  }
  for (const Bytes& input : corpus) run(input);
  Mutations mutations(corpus);
  const long count = std::strtol(argv[2], nullptr, 10);
  for (long i = 0; i < count; ++i) run(mutations.next());
  std::remove("FINDING");
  std::printf("%zu inputs, %ld mutations\n", corpus.size() - 1, count);
}
