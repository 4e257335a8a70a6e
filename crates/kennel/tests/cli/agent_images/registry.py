# A registry of npm with one package, in two versions. Prints its port.
import base64
import hashlib
import http.server
import io
import json
import tarfile

NAME = "kennel-test-agent"


def packed(version):
    package = {"name": NAME, "version": version, "bin": {"test-acp": "agent.js"}}
    files = {"package.json": json.dumps(package).encode(), "agent.js": open("agent.js", "rb").read()}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return package, archive.getvalue()


PACKED = {version: packed(version) for version in ("1.0.0", "2.0.0")}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        version = self.path.removeprefix(f"/{NAME}/-/").removesuffix(".tgz")
        if version in PACKED:
            return self.reply(200, PACKED[version][1])
        if self.path != f"/{NAME}":
            return self.reply(404, b"{}")
        versions = {}
        for version, (package, archive) in PACKED.items():
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
            tarball = f"http://{self.headers['host']}/{NAME}/-/{version}.tgz"
            versions[version] = {**package, "dist": {"tarball": tarball, "integrity": integrity}}
        about = {"name": NAME, "dist-tags": {"latest": "2.0.0"}, "versions": versions}
        self.reply(200, json.dumps(about).encode())

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
