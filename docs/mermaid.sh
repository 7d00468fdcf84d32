#!/bin/sh
# Put Mermaid into the site, so that its diagrams are drawn without the network: the theme would load it from unpkg.com.
set -eu
version=11.17.2
digest=581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8
file="$(cd "$(dirname "$0")" && pwd)/javascripts/mermaid.min.js"
command -v npm > /dev/null || {
  echo 'textmill: npm is not installed; readers of the site will load Mermaid from unpkg.com' >&2
  exit 0
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm pack --silent "mermaid@$version" > /dev/null
tar xzf "mermaid-$version.tgz" package/dist/mermaid.min.js
found=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' package/dist/mermaid.min.js)
[ "$found" = "$digest" ] || {
  echo "textmill: mermaid $version has the digest $found and not $digest; it is not used" >&2
  exit 1
}
mkdir -p "$(dirname "$file")"
touch package/dist/mermaid.min.js # npm dates its files back, and make would run this script again
mv package/dist/mermaid.min.js "$file"
