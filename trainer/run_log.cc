#include "trainer/run_log.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace shardwright::trainer {
namespace {

// Paths may hold bytes that are no UTF-8.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

template <typename F>
void RunLog::keep_failure(F work) {
  if (!records_) return;
  try {
    work();
  } catch (const Error& error) {
    if (!failure_) failure_ = error;
  }
}

void RunLog::open(const std::string& run_dir) {
  if (speaks_) records_.emplace(run_dir);
}

void RunLog::step(const StepRecord& record) {
  keep_failure([&] { records_->step(record); });
}

void RunLog::skipped(const SkipRecord& r) {
  keep_failure([&] { records_->skipped(r); });
  line(r.reason == "overflow"
           ? fmt::format("gradients overflow at loss scale {:.0f}: batch passed over, step {} takes the next",
                         2 * r.loss_scale, r.step)
           : fmt::format("step {}: batch of samples {} passed over ({}), the next one is taken", r.step,
                         r.samples, r.reason));
}

void RunLog::spike(std::int64_t step, const char* what, double value, double usual) {
  event("spike", fmt::format(R"({{"step":{},"what":"{}","value":{},"usual":{}}})", step, what,
                             json_number(value), json_number(usual)));
  line(fmt::format("step {}: {} is {:.4g}, {:.1f} times what is usual", step, what, value, value / usual));
}

void RunLog::leap(std::int64_t step, double loss, double saved) {
  event("spike", fmt::format(R"({{"step":{},"what":"loss after resume","value":{},"usual":{}}})", step,
                             json_number(loss), json_number(saved)));
  line(fmt::format(
      "warning: step {}: the loss is {:.4g}, but {:.4g} when the checkpoint was saved: these may not be the "
      "weights that were trained; compare the checkpoint with others by `shardwright diff`",
      step, loss, saved));
}

void RunLog::eval(std::int64_t step, double loss, std::int64_t tokens) {
  keep_failure([&] { records_->eval(step, loss, tokens); });
}

void RunLog::outcome(const ckpt::SaveOutcome& outcome) {
  keep_failure([&] { records_->checkpoint(outcome); });
  if (outcome.result == ckpt::SaveResult::committed) {
    event("checkpoint_committed", dump({{"step", outcome.step}}));
    line(fmt::format("checkpoint of step {}: {}{}{}", outcome.step, outcome.path,
                     outcome.reason.empty() ? "" : "; ", outcome.reason));
  } else if (outcome.result == ckpt::SaveResult::failed) {
    event("checkpoint_failed", dump({{"step", outcome.step}, {"reason", outcome.reason}}));
    line(fmt::format("checkpoint of step {} failed: {}", outcome.step, outcome.reason));
  } else {
    line(fmt::format("checkpoint of step {} skipped: {}", outcome.step, outcome.reason));
  }
  for (const std::string& path : outcome.retired) path_event("retired", path);
}

void RunLog::saves(const SaveCounts& c) {
  if (c.committed + c.failed + c.skipped == 0) return;
  event("saves", fmt::format(R"({{"committed":{},"failed":{},"skipped":{},"waits":{},"wait_ms":{}}})",
                             c.committed, c.failed, c.skipped, c.waits, json_number(c.wait_ms)));
  line(fmt::format(
      "checkpoints: {} committed, {} failed, {} skipped; {} waited for the one before, {:.2f} s in all",
      c.committed, c.failed, c.skipped, c.waits, c.wait_ms / 1e3));
}

void RunLog::event(const std::string& event, const std::string& fields_json) {
  keep_failure([&] { records_->event(generation_, event, fields_json); });
}

void RunLog::path_event(const std::string& name, const std::string& path) {
  event(name, dump({{"path", path}}));
}

void RunLog::line(const std::string& text) {
  if (!speaks_) return;
  std::fputs(fmt::format("{}\n", text).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace shardwright::trainer
