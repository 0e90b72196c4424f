// Checkpoints that need not exist: what one of a model and a layout would consist of.
#pragma once

#include "ckpt/manifest.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::reshard {

/// The manifest of a training checkpoint of `model` in a legal `layout`, as far as it follows from them:
/// tensors, states (fp32), boxes and files, each file as large as its values. Fingerprints have their counts
/// only; training and config are empty, digests zero.
ckpt::Manifest imagined_manifest(const ModelSpec& model, const Layout& layout);

}  // namespace shardwright::reshard
