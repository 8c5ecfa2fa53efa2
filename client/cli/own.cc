// `kiln start` and `kiln stop`: the user's own server.
#include <sys/types.h>

#include <cstdio>
#include <optional>

#include "client/cli/command.h"
#include "client/own_server.h"

namespace kiln::cli {

Outcome RunStart(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln start takes no arguments");
  const OwnServer own = OwnServer::Locate();
  if (absl::Status started = own.Start(); !started.ok()) return Failed(started);
  auto running = own.Running();
  if (!running.ok()) return Failed(running.status());
  std::printf("kilnd runs at %s, process %d\n", own.address().c_str(), running->value_or(0));
  return Ok();
}

Outcome RunStop(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln stop takes no arguments");
  const OwnServer own = OwnServer::Locate();
  auto stopped = own.Stop();
  if (!stopped.ok()) return Failed(stopped.status());
  std::printf("%s\n", *stopped ? "kilnd has ended" : "kilnd does not run");
  return Ok();
}

}  // namespace kiln::cli
