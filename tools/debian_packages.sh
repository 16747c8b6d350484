# shellcheck shell=bash
# Downloads packages of any suite and architecture of Debian, without root and without installing anything. To be sourced:
#
#   find_mirror                              sets `mirror`, or `why` and fails: no apt, no Debian mirror or no Debian keyring
#   download SUITE ARCHITECTURE PACKAGE…     into the current folder, with lists and caches of our own in $work
#   unpack FOLDER                            the packages of the current folder into FOLDER, which they replace

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror is the one the machine was set up with, in either form of apt's sources: "deb URI suite …", "URIs: URI".
find_mirror() {
    local tool
    for tool in apt-get dpkg-deb dpkg; do
        command -v "$tool" > /dev/null || { why="no $tool on this machine"; return 1; }
    done
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null \
        | grep -v '^ *#' | grep -oE '(https?|file|mirror\+[a-z]+):/[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
    if [ -z "$mirror" ] || [ ! -e "$keyring" ]; then
        why="this machine's apt has no Debian mirror or no Debian keyring"
        return 1
    fi
}

download() {
    local suite=$1 architecture=$2 state=$work/apt-$1-$2
    shift 2
    if [ ! -d "$state" ]; then
        mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
        echo "deb [signed-by=$keyring] $mirror $suite main" > "$state/sources.list"
        cat > "$state/apt.conf" << EOF
#clear APT::Update::Post-Invoke;            // container images clean the machine's own cache here
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
Dir::Etc::SourceList "$state/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$state/lists";
Dir::State::Status "/dev/null";             // what is installed on the machine is of no interest
Dir::Cache "$state/cache";
Debug::NoLocking "true";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::Retries "3";
EOF
        apt-get -c "$state/apt.conf" -qq update
    fi
    apt-get -c "$state/apt.conf" -qq download "$@"
}

unpack() {
    mkdir root
    local package
    for package in *.deb; do dpkg-deb --extract "$package" root; done
    rm -rf "$1"
    mv root "$1"
}
