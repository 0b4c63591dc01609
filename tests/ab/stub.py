"""A server that streams at known rates, and lies in known ways: `python stub.py JSON`.

It keeps its own time table: token i of a request is sent ``ttft + i * tpot`` seconds after the
request's last byte came, whatever happened before. Prints its port.
"""

import asyncio
import contextlib
import json
import sys

TRUTH = {
    "ttft": 0.05,  # s
    "tpot": 0.01,  # s
    "tokens": 20,
    "per_chunk": 1,  # tokens in a chunk after the first
    "usage": "end",  # "own chunk" after the finish, "end": with the last one, "none"
    "ids": True,  # chunks carry token ids
    "metrics": True,  # /metrics has speculative counters
    "per_step": False,  # the last chunk has vLLM's per-request metrics
    "vary": 0.0,  # a prompt's tpot is tpot * (1 + vary * (its number mod 5))
    "fail": {},  # prompt's number -> "429", "500", "hang", "cut", "garbage"
    "refuse": [],  # fields a strict server does not know: HTTP 400
}


class Stub:
    """One server's state: its counters."""

    def __init__(self, truth):
        self.truth = {**TRUTH, **truth}
        self.drafts = self.drafted = self.accepted = 0
        self.sent = []  # of every request: seconds after it came, chunk by chunk

    async def serve(self, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode().split("\r\n")
            method, path, _ = lines[0].split()
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            now = asyncio.get_running_loop().time()
            if method == "GET":
                self.get(writer, path)
            else:
                await self.post(writer, json.loads(body), now, chat="chat" in path)
            await writer.drain()

    def get(self, writer, path):
        if path == "/v1/models":
            reply(writer, 200, json.dumps({"data": [{"id": "stub"}]}))
        elif path == "/sent":
            reply(writer, 200, json.dumps(self.sent))
        elif path == "/metrics" and self.truth["metrics"]:
            name = "vllm:spec_decode_num_"
            lines = [f"# TYPE {name}{what} counter" for what in ("drafts",)]
            lines += [f'{name}drafts_total{{e="0"}} {self.drafts}']
            lines += [f"# TYPE {name}draft_tokens counter"]
            lines += [f'{name}draft_tokens_total{{e="0"}} {self.drafted}']
            lines += [f"# TYPE {name}accepted_tokens_per_pos counter"]
            per_pos = self.truth["per_chunk"] - 1
            lines += [
                f'{name}accepted_tokens_per_pos_total{{e="0",position="{i}"}} {self.drafts}'
                for i in range(per_pos)
            ]
            reply(writer, 200, "\n".join(lines) + "\n")
        else:
            reply(writer, 404, "{}")

    async def post(self, writer, body, now, *, chat):
        truth = self.truth
        unknown = [name for name in truth["refuse"] if name in body]
        if unknown:
            return reply(writer, 400, json.dumps({"error": {"message": f"unknown {unknown}"}}))
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        number = int(text.split()[-1]) if text.split()[-1].isdigit() else 0
        fault = truth["fail"].get(str(number))
        if fault in ("429", "500"):
            return reply(writer, int(fault), json.dumps({"error": {"message": "no"}}))
        if fault == "hang":
            await asyncio.sleep(3600)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        tpot = truth["tpot"] * (1 + truth["vary"] * (number % 5))
        loop, sent, rounds, times = asyncio.get_running_loop(), 0, [], []
        self.sent.append((number, times))
        while sent < truth["tokens"]:
            count = 1 if sent == 0 else min(truth["per_chunk"], truth["tokens"] - sent)
            due = now + truth["ttft"] + (sent + count - 1) * tpot
            await asyncio.sleep(max(due - loop.time(), 0))
            ids = list(range(number * 100 + sent, number * 100 + sent + count))
            sent += count
            said = "".join(f" w{i}" for i in ids)
            choice = {"index": 0, "finish_reason": "length" if sent == truth["tokens"] else None}
            choice |= {"delta": {"content": said}} if chat else {"text": said}
            if truth["ids"] and body.get("return_token_ids"):
                choice["token_ids"] = ids
            event = {"choices": [choice]}
            if sent > 1:
                rounds.append(count)
                if truth["per_chunk"] > 1:
                    self.drafts += 1
                    self.drafted += truth["per_chunk"] - 1
                    self.accepted += truth["per_chunk"] - 1
            last = sent == truth["tokens"]
            usage = {"prompt_tokens": len(text.split()), "completion_tokens": sent}
            if last and truth["usage"] == "end":
                event["usage"] = usage
            if fault == "garbage" and sent > 3:
                chunk(writer, b"data: {not json\n\n")
            if fault == "cut" and sent > 3:
                return writer.close()
            times.append(loop.time() - now)
            chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
            await writer.drain()
        if truth["usage"] == "own chunk":
            late = {"choices": [], "usage": usage}
            if truth["per_step"]:
                steps = {"per_step_accepted": [n - 1 for n in rounds]}
                steps |= {"per_step_drafted": [truth["per_chunk"] - 1] * len(rounds)}
                late["metrics"] = {"speculative_decoding": {"mean_acceptance_length": 1} | steps}
            await asyncio.sleep(0.03)
            chunk(writer, b"data: " + json.dumps(late).encode() + b"\n\n")
        chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def chunk(writer, data):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def reply(writer, status, text):
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


async def main(truth):
    stub = Stub(truth)

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await stub.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
