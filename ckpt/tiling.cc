#include "ckpt/tiling.h"

#include <algorithm>
#include <array>
#include <vector>

namespace shardwright::ckpt {
namespace {

/// How many boxes hold an element, less one, is a function that must be 0 everywhere. It is the sum of the
/// boxes' indicators less the tensor's, so its difference along all dimensions is not 0 only at corners of
/// boxes: a box adds 1 or -1 at each of its 2^d corners. The function is 0 everywhere if these cancel out at
/// every point. At the first point (in row-major order) where they do not, the function has the value of the
/// difference, because there is none before it.
class Corners {
 public:
  explicit Corners(std::size_t dims) : dims_(dims), at_(Dims::filled(dims, 0)) {}

  /// A box of the dimensions from some one on, to be counted with a sign.
  struct Counted {
    const Box* box;
    std::int64_t sign;
  };

  /// The first point where the corners of `boxes` along dimensions `d` and up do not cancel out.
  std::optional<Miscount> find(std::span<const Counted> boxes, std::size_t d) {
    if (d == dims_) {
      std::int64_t sum = 0;
      for (const Counted& c : boxes) sum += c.sign;
      if (sum == 0) return std::nullopt;
      return Miscount{at_, static_cast<std::uint64_t>(sum + 1)};
    }
    if (alike(boxes, d)) {  // at their end the same would cancel out, with the other sign
      at_[d] = boxes.front().box->offset[d];
      return find(boxes, d + 1);
    }
    std::vector<Face>& faces = faces_[d];
    faces.clear();
    for (const Counted& c : boxes) {
      faces.push_back({c.box->offset[d], {c.box, c.sign}});
      faces.push_back({c.box->end(d), {c.box, -c.sign}});
    }
    std::sort(faces.begin(), faces.end(), [](const Face& a, const Face& b) { return a.at < b.at; });
    std::vector<Counted>& group = groups_[d];
    for (std::size_t i = 0; i < faces.size();) {
      group.clear();
      at_[d] = faces[i].at;
      for (; i < faces.size() && faces[i].at == at_[d]; ++i) group.push_back(faces[i].counted);
      if (const auto found = find(group, d + 1)) return found;
    }
    return std::nullopt;
  }

 private:
  /// A lower side of a box, or an upper one with the opposite sign.
  struct Face {
    std::uint64_t at;
    Counted counted;
  };

  static bool alike(std::span<const Counted> boxes, std::size_t d) {
    const Box& first = *boxes.front().box;
    return std::all_of(boxes.begin(), boxes.end(), [&](const Counted& c) {
      return c.box->offset[d] == first.offset[d] && c.box->shape[d] == first.shape[d];
    });
  }

  std::size_t dims_;
  Dims at_;
  // By dimension: a call for one leaves those of the dimensions before it alone.
  std::array<std::vector<Face>, kMaxDims> faces_;
  std::array<std::vector<Counted>, kMaxDims> groups_;
};

}  // namespace

std::optional<Miscount> first_miscount(std::span<const Box* const> boxes, const Dims& shape) {
  const Box whole = Box::whole(shape);
  std::vector<Corners::Counted> counted = {{&whole, -1}};
  for (const Box* box : boxes) counted.push_back({box, 1});
  return Corners(shape.size()).find(counted, 0);
}

}  // namespace shardwright::ckpt
