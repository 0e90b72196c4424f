// A picture of who holds which part of a tensor, before and after a change of layout: boxes to SVG text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/contents.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::reshard {

/// A part of a tensor and the ranks that it belongs to, ascending.
struct DrawnPart {
  ckpt::Box box;
  std::vector<int> ranks;
};

/// One tensor in one layout.
struct DrawnSide {
  std::vector<DrawnPart> holds;   // distinct boxes, each with all ranks that hold it; may be empty: not known
  std::vector<DrawnPart> writes;  // each of one rank; they cover the tensor once
};

struct DrawnTensor {
  std::string name;
  ckpt::Dims shape;
  std::vector<DrawnSide> sides;  // one for each column of the drawing
};

struct Drawing {
  std::string title;
  std::vector<std::string> columns;  // headings, left to right
  std::vector<DrawnTensor> tensors;  // top to bottom
};

/// The drawing of a checkpoint: the boxes that its files hold on the left, and with `target` those that a
/// reshard to it would write on the right. `names` chooses tensors; empty: embedding, norm, q, k, MLP
/// matrices of the first layer (of another program's checkpoint: its first six). Error(usage) for an unknown
/// name or an illegal target.
Drawing draw_checkpoint(const ckpt::Manifest& manifest, const std::string& title,
                        const std::optional<Layout>& target, const std::vector<std::string>& names);

/// Who holds and who writes a tensor in a legal layout, for each row of the model in `tensors`.
std::vector<DrawnSide> drawn_sides(const ModelSpec& model, const Layout& layout,
                                   const std::vector<std::uint32_t>& tensors);

/// A complete SVG document. Each part that a rank writes is a filled `rect` of class "writes" with attributes
/// data-tensor, data-column (from 0), data-rank, data-offset and data-shape ("0,64"); each distinct held box
/// an outlined `rect` of class "holds" with data-ranks ("0 2"). Dimensions after the second are not drawn,
/// only written.
std::string to_svg(const Drawing& drawing);

}  // namespace shardwright::reshard
