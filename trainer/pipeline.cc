#include "trainer/pipeline.h"

#include <utility>

#include "ckpt/trace.h"

namespace shardwright::trainer {
namespace {

// Messages between two ranks are told apart by what they are and by the chunk they are for; those of one kind
// come in the order of the schedule.
enum class Message : int { input, output_gradient };
int tag(Message message, std::size_t chunk) {
  return 2 * static_cast<int>(chunk) + static_cast<int>(message);
}

void finish(std::unique_ptr<Transfer>& transfer) {
  if (!transfer) return;
  const trace::Span span("wait for transfer");
  transfer->wait();
  transfer.reset();
}

const char* name(Action action) {
  switch (action) {
    case Action::receive_input:
      return "receive input";
    case Action::forward:
      return "forward";
    case Action::send_output:
      return "send output";
    case Action::receive_gradient:
      return "receive gradient";
    case Action::backward:
      return "backward";
    case Action::send_gradient:
      break;
  }
  return "send gradient";
}

PipelinePlace place(const Communicator& pipeline, const Parameters& parameters) {
  const auto stages = reshard::virtual_stages(parameters.layout(), parameters.model(), parameters.rank());
  return {pipeline.size(), pipeline.rank(), static_cast<int>(stages.size())};
}

}  // namespace

Pipeline::Pipeline(Parameters& parameters, Communicators& comms, DataParallel& data, kernels::Stream& stream,
                   const PipelineOptions& options)
    : pipeline_(*comms.pipeline),
      tensor_(*comms.tensor),
      group_(*comms.tensor, options.sequence_parallel),
      shape_(decoder_shape(parameters, group_, options.batch * options.positions, options.recompute)),
      work_(shape_, group_.spread()),
      schedule_(make_schedule(options.schedule, place(pipeline_, parameters), options.micro_batches)) {
  if (options.early_receives) schedule_ = with_early_receives(std::move(schedule_));
  const DecoderParts parts{parameters, data, group_, stream, shape_, work_, options.seed};
  int chunk = 0;
  for (const reshard::StageLayers& stage :
       reshard::virtual_stages(parameters.layout(), parameters.model(), parameters.rank())) {
    stages_.emplace_back(parts, stage, buffers_needed(schedule_, chunk++));
    transfers_.emplace_back(static_cast<std::size_t>(stages_.back().buffers()));
  }
}

double Pipeline::train(const Source& source, float scale, const Observer& observer) {
  return run(schedule_, {source, scale, true}, observer);
}

double Pipeline::evaluate(std::int64_t micro_batches, const Source& source, const Observer& observer) {
  const PipelinePlace here{pipeline_.size(), pipeline_.rank(), static_cast<int>(stages_.size())};
  return run(make_forward_schedule(here, micro_batches), {source, 0, false}, observer);
}

double Pipeline::run(const std::vector<Instruction>& schedule, Run run, const Observer& observer) {
  for (const Instruction& instruction : schedule) {
    if (instruction.action == Action::forward || instruction.action == Action::backward)
      observer(instruction.action);
    execute(instruction, run);
  }
  for (std::vector<Transfers>& buffers : transfers_) {
    for (Transfers& t : buffers) {
      finish(t.output);
      finish(t.input_gradient);
    }
  }
  return tensor_.rank() == 0 ? run.loss : 0;
}

void Pipeline::begin(int chunk, std::int64_t micro, const Source& source) {
  DecoderStage& stage = stages_[static_cast<std::size_t>(chunk)];
  const std::int64_t buffer = micro % stage.buffers();
  Transfers& t = transfers_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(buffer)];
  finish(t.output);
  finish(t.input_gradient);
  stage.begin(buffer, source(micro));
}

void Pipeline::execute(const Instruction& instruction, Run& run) {
  const trace::Span span(name(instruction.action), "micro", instruction.micro);
  const auto chunk = static_cast<std::size_t>(instruction.chunk);
  DecoderStage& stage = stages_[chunk];
  const std::int64_t buffer = instruction.micro % stage.buffers();
  Transfers& t = transfers_[chunk][static_cast<std::size_t>(buffer)];
  const int ranks = pipeline_.size();
  const int next = (pipeline_.rank() + 1) % ranks;
  const int previous = (pipeline_.rank() + ranks - 1) % ranks;
  // From the last rank to the first a chunk's output is the next chunk's input.
  const std::size_t chunk_of_next = chunk + (next == 0 ? 1 : 0);
  const std::size_t chunk_of_previous = chunk - (pipeline_.rank() == 0 ? 1 : 0);
  switch (instruction.action) {
    case Action::receive_input:
      begin(instruction.chunk, instruction.micro, run.source);
      t.input = pipeline_.receive(stage.input(buffer), previous, tag(Message::input, chunk));
      break;
    case Action::forward:
      if (stage.first()) begin(instruction.chunk, instruction.micro, run.source);
      finish(t.input);
      run.loss += stage.forward(buffer, run.training);
      break;
    case Action::send_output:
      t.output = pipeline_.send(stage.output(buffer), next, tag(Message::input, chunk_of_next));
      break;
    case Action::receive_gradient:
      t.output_gradient =
          pipeline_.receive(stage.output_gradient(buffer), next, tag(Message::output_gradient, chunk));
      break;
    case Action::backward:
      finish(t.output_gradient);
      stage.backward(buffer, run.scale);
      break;
    case Action::send_gradient:
      t.input_gradient = pipeline_.send(stage.input_gradient(buffer), previous,
                                        tag(Message::output_gradient, chunk_of_previous));
      break;
  }
}

}  // namespace shardwright::trainer
