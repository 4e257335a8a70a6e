# A client on PyPI's agent-client-protocol. Runs a command as its agent, sends one prompt, and prints what happened as JSON.
#
#   python3 client.py DIRECTORY PROMPT DECISION -- COMMAND…      DECISION: allow, or cancel at the first request for permission
import asyncio
import collections
import json
import os
import sys

import acp
from acp import schema

cwd, prompt, decision, _, *command = sys.argv[1:]


class Client:
    def __init__(self):
        self.updates = collections.Counter()
        self.permissions = 0
        self.files = 0
        self.connection = None

    def on_connect(self, connection):
        pass

    async def request_permission(self, session_id, tool_call, options, **_):
        self.permissions += 1
        if decision == "cancel":
            await self.connection.cancel(session_id=session_id)
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        option = next(option for option in options if option.kind == "allow_once")
        outcome = schema.AllowedOutcome(outcome="selected", option_id=option.option_id)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id, update, **_):
        self.updates[update.session_update] += 1

    async def read_text_file(self, **_):
        self.files += 1
        return schema.ReadTextFileResponse(content="from the client")

    async def write_text_file(self, **_):
        self.files += 1

    async def ext_notification(self, method, params):
        pass


async def main():
    client = Client()
    async with acp.spawn_agent_process(client, *command, cwd=cwd, env=dict(os.environ)) as (connection, _):
        client.connection = connection
        begun = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = await connection.new_session(cwd=cwd, mcp_servers=[])
        ended = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block(prompt)])
        seen = {"permissions": client.permissions, "files": client.files, "updates": dict(client.updates)}
        print(json.dumps({"protocol": begun.protocol_version, "stopReason": ended.stop_reason, **seen}))


asyncio.run(main())
